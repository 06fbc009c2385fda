from tapeless.cli import main

main()
