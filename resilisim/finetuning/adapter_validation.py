"""How good an adapter is: validation episodes, by llama.cpp as users play them, or where it is trained on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.chat.local import ADAPTER_FILE
from resilisim.chat.local.gguf import fingerprint, release
from resilisim.chat.middleware import ChatModelSettings
from resilisim.datasets.rollout import RolloutSpec, Stage, Start
from resilisim.envs.settings import EnvironmentSettings
from resilisim.evaluation import ModelSettings, evaluate
from resilisim.evaluation.table.episodes import table_of
from resilisim.evaluation.table.summary import GroupSummary, summarise
from resilisim.finetuning.config import FinetuningConfig
from resilisim.finetuning.examples import Encoder
from resilisim.finetuning.sampling import Sampler
from resilisim.seeding import VALIDATION_SALT
from resilisim.tasks import Task
from resilisim.tool_library import default_library

MESSAGE_TOKENS = 96  # of a message in validation; trained models need a third of them
PLAYER = f"direct[max_tokens={MESSAGE_TOKENS}]"


def validate(folder: Path, tasks: Sequence[Task], config: FinetuningConfig) -> dict[str, Any]:
    """Return `success`, `optimum`, `share` and `shares` of a `Standing`, of the adapter in a folder, by llama.cpp."""
    chat = ChatModelSettings(local_threads=config.num_threads, local_reuse_prompts=True)
    result = evaluate(
        PLAYER,
        list(tasks),
        config.prompt_types,
        config.validation_episodes,
        model=ModelSettings((f"local:{folder.resolve()}",), chat),  # not a name, whatever the folder is called
        progress=False,
        prompt_style="terse",
        law=config.laws[0],
        salt=VALIDATION_SALT,
    )
    release(fingerprint([folder / ADAPTER_FILE]))
    return _figures(result.rows)


def validate_in_process(
    model: Any, encoder: Encoder, tasks: Sequence[Task], config: FinetuningConfig, device: str
) -> dict[str, Any]:
    """Return the same of a model in this process, which plays the same episodes side by side on its device.

    It says the likeliest token each time. Its messages are sent as they are, where the agent `direct` also puts calls
    in other forms right: a model that is trained here has no other forms.
    """
    environment = EnvironmentSettings(prompt_style="terse", law=config.laws[0], salt=VALIDATION_SALT)
    spec = RolloutSpec(prompts=config.prompt_types, pass_parameters=False, environment=environment)
    stage = Stage(default_library(), spec)
    openings = [
        (stage, task, Start(prompt, seed))
        for prompt in config.prompt_types
        for task in tasks
        for seed in range(config.validation_episodes)
    ]
    longer = config.model_copy(update={"stage": "sft", "message_tokens": MESSAGE_TOKENS})
    records = Sampler(model, encoder, longer, device, greedy=True).records(openings, PLAYER)
    return _figures(summarise(table_of(records)))


def _figures(rows: Sequence[GroupSummary]) -> dict[str, Any]:
    """Return figures of rows, one for each prompt type, of equally many episodes."""
    return {
        "success": float(np.mean([row.success.value for row in rows])),
        "optimum": float(np.mean([row.optimum.value for row in rows])),
        "share": float(sum(row.luck_adjusted.value for row in rows) / sum(row.optimum.value for row in rows)),
        "shares": {row.prompt_type: row.adjusted_share.value for row in rows},
    }
