"""Tables of rows: which files hold them, and how each kind is read."""
