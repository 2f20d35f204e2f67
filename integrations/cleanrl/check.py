"""A loop of one's own in PyTorch, really run: the lines of the page learn something."""

from __future__ import annotations

import torch
from pages import run_blocks


def main() -> None:
    """Run the page, and compare what it gives away at the end with what random legal actions do."""
    torch.manual_seed(0)
    names = run_blocks("rl-libraries", {}, section="A loop of your own")
    envs = names["envs"]
    generator = torch.Generator().manual_seed(1)
    regrets = []
    for learned in (True, False):
        seen, _ = envs.reset(seed=5)
        total = 0.0
        for _ in range(200):
            mask = torch.tensor(seen["action_mask"]).bool()
            logits = names["net"](torch.tensor(seen["tools"]) / 255) if learned else torch.zeros(mask.shape)
            chances = logits.masked_fill(~mask, -torch.inf).softmax(-1)
            seen, advantages, *_ = envs.step(torch.multinomial(chances, 1, generator=generator)[:, 0].numpy())
            total -= float(advantages.sum())
        regrets.append(total)
    assert regrets[0] < 0.8 * regrets[1], regrets
    print(f"loop of one's own: gives away {regrets[0]:.0f} where random actions give away {regrets[1]:.0f}")


if __name__ == "__main__":
    main()
