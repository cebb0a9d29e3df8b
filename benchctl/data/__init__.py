"""What a run leaves on disk: records, manifest and the files beside them, each with a version."""
