"""Floor 4: speed-up, acceptance, losslessness and cost, as pure functions of records and the manifest."""
