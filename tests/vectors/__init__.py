"""Cases with inputs and expected results, run through the code of the product.

`python -m tests.vectors FILE...` runs files of the form {"groups": [{"group": .., "cases":
[{"name": .., "input": .., "expected": ..}]}]}. Every other module of this package may hold:

- `ADAPTERS`: group -> function from a case's input to the product's result (an exception where
  the case expects {"error": true}; LookupError for an input that the product has no code for);
- `DIFFERENCES`: group -> function from (input, expected) to None, or to (reason, what we give
  instead) where we differ on purpose. What we give is held against that, so it stays tested;
- `OUT_OF_PLAY`: group -> function from the input of a case in which we differ to another input, of
  which upstream says the same and in which nothing that we mended plays a part; None if there is
  none. Of that one the product must say what the case expects;
- `TRUNCATED`: groups whose whole numbers are cut from a product and may differ by 1.
"""
