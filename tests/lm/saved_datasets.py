"""Make the files in `data` with the library `datasets`, which the package does not need:

pip install datasets 'pyarrow<24' && python tests/lm/saved_datasets.py
"""

from pathlib import Path
from random import Random

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "sigma")
DATA = Path(__file__).parent / "data"
ROWS, TRAINED = 24, 16
COUNTS = {"train": (0, TRAINED), "test": (TRAINED, ROWS)}


def texts() -> list[str | None]:
    """Return the text of each row: most have some lines, two are equal, and three have none."""
    random = Random(0)
    found: list[str | None] = []
    for row in range(ROWS):
        lines = (f"{random.choice(WORDS)}_{row} = {random.choice(WORDS)}, 'ü' # \"{line}\"\n" for line in range(6))
        found.append("".join(lines))
    found[3], found[5], found[7], found[20] = found[2], None, "", " \n"
    return found


def columns() -> dict[str, list]:
    """Return a dataset as it is met: the text beside numbers, labels, nested columns and a column without values."""
    rows = texts()
    return {
        "id": list(range(ROWS)),
        "text": rows,
        "label": [row % 2 for row in range(ROWS)],
        "about": [{"language": "en", "title": f"title {row}"} for row in range(ROWS)],
        "messages": [
            [{"role": "user", "content": f"{WORDS[row % 12]} {row}?"}, {"role": "model", "content": text}]
            for row, text in enumerate(rows)
        ],
        "vector": [[0.5, float(row)] for row in range(ROWS)],
        "nothing": [None] * ROWS,
    }


def main() -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value  # type: ignore[import-not-found]

    text = Value("string")
    features = Features(
        id=Value("int32"),
        text=text,
        label=ClassLabel(names=["no", "yes"]),
        about={"language": text, "title": text},
        messages=List({"role": text, "content": text}),
        vector=List(Value("float32"), length=2),
        nothing=Value("null"),
    )
    here, whole = DATA, Dataset.from_dict(columns(), features=features)
    parts = DatasetDict({name: whole.select(range(*rows)) for name, rows in COUNTS.items()})
    parts.save_to_disk(here / "dataset_dict", num_shards={"train": 2, "test": 1})
    whole.shuffle(seed=0).save_to_disk(here / "dataset")
    whole.to_parquet(here / "rows.parquet", batch_size=10)
    whole.to_json(here / "rows.jsonl")
    whole.to_json(here / "rows.json", lines=False)
    whole.select_columns(["id", "text", "label"]).to_csv(here / "rows.csv")


if __name__ == "__main__":
    main()
