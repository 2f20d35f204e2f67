"""Which of two policies is better, and how sure that is: common luck, luck adjustment, ranks, sample sizes."""
