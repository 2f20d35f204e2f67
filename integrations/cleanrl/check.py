"""A loop of one's own in PyTorch, really run: the lines of the page pay regrets, and move the weights."""

from __future__ import annotations

import torch
from pages import run_blocks


def main() -> None:
    """Run the page."""
    torch.manual_seed(0)
    names = run_blocks("rl-libraries", {"range(500)": "range(50)"}, section="Your own loop")
    assert (names["advantages"] <= 0.0).all(), "an advantage is what a choice gave away"
    assert names["optimizer"].state, "nothing was learnt"
    assert all(torch.isfinite(weights).all() for weights in names["net"].parameters())
    legal = torch.tensor(names["seen"]["action_mask"]).any(dim=1)
    assert legal.all()
    print("loop of one's own: the page is fine")


if __name__ == "__main__":
    main()
