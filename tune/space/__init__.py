"""The YAML search space: its grammar and what it means."""
