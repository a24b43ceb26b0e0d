"""How fast training is here, with every figure beside what it is compared with."""
