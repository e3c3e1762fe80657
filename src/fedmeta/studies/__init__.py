"""Several runs that answer a question: comparisons, searches, task sequences."""
