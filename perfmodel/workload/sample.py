"""What one sample of a model is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """What one sample is; as a text its `unit` and its `detail`: "sequence of 512 tokens".

    `unit`: a word that takes an "s" where there are several.
    `detail`: what follows it.
    `tokens`: of a sequence; None where a sample is none.
    `is_image`: whether a model of images is trained with it, as such are: with SGD.
    """

    unit: str = "sample"
    detail: str = ""
    tokens: int | None = None
    is_image: bool = False

    def __str__(self) -> str:
        return f"{self.unit} {self.detail}".rstrip()

    @property
    def units(self) -> str:
        """Several, in one word.

        Examples
        --------
        >>> sequence_of(512).units, str(sequence_of(512)), sequence_of(512).plural
        ('sequences', 'sequence of 512 tokens', 'sequences of 512 tokens')
        """
        return f"{self.unit}s"

    @property
    def plural(self) -> str:
        """Several, in full."""
        return f"{self.units} {self.detail}".rstrip()


SAMPLE = Sample()
"""Of a model that does not say what it is."""


def sequence_of(tokens: int) -> Sample:
    """Return a sequence of so many tokens."""
    return Sample("sequence", f"of {tokens} tokens", tokens)


def stated_sample(text: str, tokens: int | None) -> Sample:
    """Return what a model file says that a sample is: its first word is the unit.

    `tokens`: as the file states them.
    """
    unit, _, detail = text.strip().partition(" ")
    return Sample(unit, detail.strip(), tokens, is_image=unit == "image")
