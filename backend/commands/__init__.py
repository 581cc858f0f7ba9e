"""The subcommands of `pagoda`, one module each: HELP, add_arguments(parser), run(args) -> exit status."""
