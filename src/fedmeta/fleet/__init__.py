"""What a fleet needs beyond the method: a guard, privacy, short uploads, keys and a fence."""
