"""What becomes of a job: its stages, its sources, its variables, its end."""
