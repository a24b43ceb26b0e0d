"""`latebloom bench`: training speed on this machine, beside what it is compared with."""
