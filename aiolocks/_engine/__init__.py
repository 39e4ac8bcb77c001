"""One acquisition over any Grantor: asking, waiting, the lease, the block, renewal, release."""
