"""Machine limits, what a model may spend, and the pages of the key/value cache. Modules are imported by name: the
options must not cost the import of NumPy."""
