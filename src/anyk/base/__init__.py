"""What every room uses: errors, checks of arguments, specs, plain data, keyed random numbers, named code, files."""
