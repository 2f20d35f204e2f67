"""TorchRL, really run: the lines of the page, its own check of specs, pixels and conversations."""

from __future__ import annotations

import torch
from pages import run_blocks
from torchrl.envs import GymEnv
from torchrl.envs.utils import check_env_specs


def main() -> None:
    """Run the page, then what else TorchRL does with an id."""
    names = run_blocks("rl-libraries", {}, section="TorchRL")
    episode, batch = names["episode"], names["steps"]
    assert episode["next", "done"][-1]
    assert batch.shape == (64, 20)
    for rollout in (episode, batch):  # the action of each step was legal when it was chosen
        assert rollout["action_mask"].gather(-1, rollout["action"].unsqueeze(-1)).all()
    by_module = "resilisim:resilisim/Workflow-v0"
    check_env_specs(GymEnv(by_module, tasks="test"))
    assert GymEnv(by_module, tasks="test", from_pixels=True).rollout(2)["pixels"].dtype == torch.uint8
    assert GymEnv("resilisim/Conversation-v0").reset()["observation"].startswith("# Task")
    print("TorchRL: the page, specs, pixels and conversations are fine")


if __name__ == "__main__":
    main()
