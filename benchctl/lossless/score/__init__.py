"""What launches the target alone, reads answers on it and stores their scores."""
