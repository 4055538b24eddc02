"""Request traces of other systems, read into a schedule: one importer a format."""
