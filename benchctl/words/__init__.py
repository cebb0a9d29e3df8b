"""What is said of a result: the code and the values of a finding become text, for every kind of output alike."""
