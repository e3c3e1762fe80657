"""What everything rests on: trees, random numbers, errors, files, the maths of one node."""
