"""RLlib, really run: the lines of the page, one small iteration of PPO."""

from __future__ import annotations

import os

from pages import run_blocks


def main() -> None:
    """Run the page."""
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    small = {"train_batch_size=4_000": "train_batch_size=256, minibatch_size=64, num_epochs=1"}
    names = run_blocks("rl-libraries", small, section="RLlib")
    assert names["result"]["env_runners"]["num_episodes_lifetime"] > 0
    names["algorithm"].stop()
    print("RLlib: the page is fine")


if __name__ == "__main__":
    main()
