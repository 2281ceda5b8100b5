"""Testing kit: what one needs to test code that is judged, or judges, without a clock."""
