"""What the stages of Warmstart share. Imports point one way: stages -> pipeline -> libraries."""
