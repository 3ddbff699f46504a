"""What holds for all tests."""

from hypothesis import settings

# A test's time says more about the machine than about the code.
settings.register_profile("warmgate", deadline=None)
settings.load_profile("warmgate")
