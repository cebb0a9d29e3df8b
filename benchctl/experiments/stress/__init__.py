"""What only shows in use: the same requests to an arm and to the target alone, cached, crowded, in conversation."""
