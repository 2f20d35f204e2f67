"""What a training run changes between two rollouts: curriculum, learning rate, patterns, and what they remember."""
