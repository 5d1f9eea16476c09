"""Who says whether a collection is right: engines that know nothing of Datacoord, over what was read back from it."""
