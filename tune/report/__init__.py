"""What an experiment taught: what is known of it, the pictures, the advice, the page."""
