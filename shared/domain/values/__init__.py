"""JSON values: decoding, encoding, measuring, shortening and naming the places in them."""
