"""Speed-up, acceptance, losslessness and cost, as pure functions of records and the manifest."""
