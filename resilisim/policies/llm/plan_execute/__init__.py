"""Plan-and-Execute: a plan first, then its steps one by one, and a new plan where the old one does not hold."""
