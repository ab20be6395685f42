"""Cases with inputs and expected results, run through the code of the product.

`python -m tests.vectors FILE...` runs files of the form {"groups": [{"group": .., "cases":
[{"name": .., "input": .., "expected": ..}]}]}. Every other module of this package may hold:

- `ADAPTERS`: group -> function from a case's input to the product's result (an exception where
  the case expects {"error": true}; LookupError for an input that the product has no code for);
- `DIFFERENCES`: group -> function from (input, expected) to None, or to (reason, what we give
  instead) where we differ on purpose. What we give is held against that, so it stays tested;
- `TRUNCATED`: groups whose whole numbers are cut from a product and may differ by 1.
"""
