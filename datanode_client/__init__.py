"""The datanode: what a Spark executor, or any Python process, imports to land channels."""
