/* A step uses up the samples: feed them again for another one. */
