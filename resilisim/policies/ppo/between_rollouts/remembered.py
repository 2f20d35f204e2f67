"""What the parts of a training remember: immutable values that go through JSON without loss.

So a resumed run goes on exactly where it stopped.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Self, cast

from annotated_types import Ge, Le
from pydantic import ConfigDict

from resilisim.envs.workflow.kernels.training_law import COVERAGE_PHASE, MAX_STAGE, SEQUENCE_PHASE
from resilisim.inputs import validated

Phase = Annotated[int, Ge(COVERAGE_PHASE), Le(SEQUENCE_PHASE)]
Stage = Annotated[int, Ge(0), Le(MAX_STAGE)]


class Remembered:
    """What a part remembers: a frozen dataclass that goes through JSON without loss."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        mapping: dict[str, Any] = json.loads(json.dumps(asdict(cast("Any", self))))
        return mapping

    @classmethod
    def from_mapping(cls, mapping: object) -> Self:
        """Read what `to_mapping` gave; an InvalidInputError tells a field that is unknown or unusable."""
        return validated(cls, mapping, "a part of the training")
