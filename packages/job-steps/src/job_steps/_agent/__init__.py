"""The service that runs steps on an instance: GitLab's `StepRunner`, with results. It runs on Python 3.10 or later."""
