"""The gRPC face: validates shape, translates, calls the store, maps errors. No SQL and no policy."""
