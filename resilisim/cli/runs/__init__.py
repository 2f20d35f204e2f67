"""`resilisim runs`: commands about runs that were played."""
