import sys

from diloco.syncer.main import main

sys.exit(main())
