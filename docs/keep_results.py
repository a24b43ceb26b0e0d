"""Copy the results of a study into results/: python docs/keep_results.py STUDY_FOLDER

The tables of its probes go into results/NAME-probes/. Interference is measured for every layer at many steps; only the
rows of all layers together are kept, with numbers in the precision in which they were computed (float32).
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from latebloom.probes.interference import GradientInterference
from latebloom.probes.table import Table
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, read_results
from latebloom.results.probes import FOLDER, read_probe, write_probe

PROBE = GradientInterference()
RESULTS = Path(__file__).parent.parent / "results"


def keep(study: Path) -> None:
    name = read_results([study / RESULTS_FILE])[0].study
    for file, kept in ((RESULTS_FILE, name), (TUNING_FILE, f"{name}-tuning")):
        if (study / file).exists():
            shutil.copy(study / file, RESULTS / f"{kept}.parquet")
    for file in sorted((study / FOLDER).glob("*.parquet")):
        target = RESULTS / f"{name}-{FOLDER}" / file.name
        target.parent.mkdir(exist_ok=True)
        if file.stem == PROBE.name:
            _, runs = read_probe(file, {PROBE.name: PROBE.columns})
            write_probe(target, PROBE.name, PROBE.columns, [replace(run, table=thin(run.table)) for run in runs])
        else:
            shutil.copy(file, target)


def thin(table: Table) -> Table:
    """Return the rows of all layers together, with numbers rounded to float32."""
    rows = [
        {name: float(np.float32(cell)) if isinstance(cell, float) else cell for name, cell in row.items()}
        for row in table.records(layer="all")
    ]
    return Table.of(table.columns, rows)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
