"""Its place lets the tests below import ``served`` and ``scripted_worker``."""
