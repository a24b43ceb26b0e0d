"""Whether a run of a language model, or a corpus, is as it was written."""

from collections.abc import Iterator
from pathlib import Path

from latebloom.lm.checkpoints import CHECKPOINTS, RESULT, is_sealed
from latebloom.lm.corpus import MANIFEST, Corpus
from latebloom.lm.seal import DIGESTS, check_checkpoint, damage_of_result
from latebloom.results.verify import Refused, Verified


def verify(folder: Path) -> Iterator[Verified]:
    """Yield what is found about a run of `latebloom lm train` or a corpus."""
    found, note = Refused(), ""
    with found.noted():
        if (folder / MANIFEST).exists():
            Corpus.load(folder, verify=True)
        elif not is_sealed(folder):
            note = "it was written by a version without digests, so changed files are not noticed"
        else:
            for file in sorted(folder.glob(f"{CHECKPOINTS}/*/{DIGESTS}")):
                with found.noted():
                    check_checkpoint(file.parent)
            if not (folder / RESULT).exists():
                note = "it is not finished, so only its checkpoints could be checked"
            elif name := damage_of_result(folder / RESULT):
                found.problems.append(
                    f"{name} is missing or was changed after training; the command that trained the run restores it if "
                    "the checkpoint of the last step is whole"
                )
    yield found.verified(folder, note)
