"""Stores as people look at them: `forms` says where entries lie and what they mean, `reading` finds and pages them."""
