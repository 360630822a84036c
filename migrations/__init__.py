"""Schema history of the catalog, run by `lake.catalog.engine.upgrade`."""
