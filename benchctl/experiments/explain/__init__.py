"""What explains a speed: costs by width, synthetic acceptance, acceptance lengths of others."""
