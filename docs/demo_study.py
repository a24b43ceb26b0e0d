"""The demo over many seeds, with a stronger joint baseline: the runs behind docs/results/demo.md.

latebloom study docs/demo_study.py
"""

from dataclasses import replace

import latebloom as lb
from latebloom.studies.plan import Arm, Plan, Scale, study


@study("demo-seeds")
def demo_seeds(scale: Scale) -> Plan:
    """Train the demo's two arms, and joint training at DAT's rate with the loss averaged per token."""
    joint, dat = lb.recipe("demo-joint"), lb.recipe("demo-dat")
    full = replace(joint.training.full, learning_rate=dat.training.delayed.learning_rate)
    per_token = replace(joint, training=replace(joint.training, weigh="positions", full=full))
    arms = [Arm("joint", joint), Arm("dat", dat), Arm("joint-by-position", per_token)]
    return Plan(arms, seeds=range(2 if scale == "tiny" else 10))
