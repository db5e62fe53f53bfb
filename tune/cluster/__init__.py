"""Ray from inside: joining it, what it has, files and messages between its nodes."""
