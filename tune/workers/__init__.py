"""What runs in Ray's processes: a trial's training, alone or on several workers."""
