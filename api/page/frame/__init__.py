"""What all pages share: their layout, assets, words, forms, and how a handler asks the API's own routes."""
